"""The emitters of convolutions and their templates."""
