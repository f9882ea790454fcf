"""The panel in German: a language pack as JupyterLab finds one, by its entry point."""
