"""What tests of several folders share: small graphs, random graphs, the committed models."""
