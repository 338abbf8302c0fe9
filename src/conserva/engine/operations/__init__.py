"""How torch calls are read, one module for each kind of operation; `readers` is the table of all of them."""
