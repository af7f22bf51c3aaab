"""Code that every part of the kit may use: errors, options, the plug-in registry and text
helpers.
"""
