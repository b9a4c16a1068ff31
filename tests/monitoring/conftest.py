from alert_play import promtool

__all__ = ["promtool"]
