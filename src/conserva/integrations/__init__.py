"""Other libraries' interfaces, one for each library, imported where they are used."""
