"""The folders of a workspace, what an idle tick relies on, and scheduler.log."""
