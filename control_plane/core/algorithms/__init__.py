"""Small algorithms that many capabilities share; each is pure and knows no term of ours."""
