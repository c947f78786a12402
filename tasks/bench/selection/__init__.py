"""How often each rule of choice picks a setting that loses more than its margin, by redrawing validation from a pool."""
