"""The demo: a real job on real text, broken on purpose, and a verifier that trusts no report."""
