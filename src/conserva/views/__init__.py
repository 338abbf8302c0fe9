"""Views: results in the terminal, as HTML pages and as pictures. They compute nothing but colours and layout."""
