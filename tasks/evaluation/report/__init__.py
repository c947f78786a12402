"""What a sweep shows: choices, tables, figures, pages and the verdict."""
