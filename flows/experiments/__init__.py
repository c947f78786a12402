"""Runs with other settings, each in a git worktree of its own, kept as experiments of DVC.

| module | subject |
|---|---|
| `changes` | settings from options and grid files, written into `params.yaml` |
| `setting_names` | the settings that there are, also as a form for the pages of Prefect |
| `queue` | adds, takes, finishes, fails, retries, removes experiments |
| `refs` | the record: refs of git |
| `snapshot`, `worktree` | what an experiment starts from, and where it runs |
| `listing`, `git` | how experiments stand, in words; runs git |
"""
