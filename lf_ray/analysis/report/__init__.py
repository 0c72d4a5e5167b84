"""What a sweep leaves for people: words, figures, pages, configurations."""
