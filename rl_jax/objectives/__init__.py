"""Losses, advantages and token weights: arrays in, arrays out."""
