"""The methods, one file a paper: settings, presets, and the builder under `@method`. `registry` imports every file here."""
