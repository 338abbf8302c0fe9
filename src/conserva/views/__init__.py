"""Views: explanations as text, page or picture. They show, and compute nothing but colours."""
