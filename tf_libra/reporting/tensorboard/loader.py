"""Loader of the plugin; logs a missing package instead of failing.

The tab needs no TensorFlow.
"""

from typing import Any

from tensorboard.plugins import base_plugin
from tensorboard.util import tb_logging


class LibraLoader(base_plugin.TBLoader):
    """Loader for the entry point `tensorboard_plugins`."""

    def load(self, context: base_plugin.TBContext) -> Any:
        """Returns the plugin; None if a package that it needs cannot be imported."""
        try:
            from tf_libra.reporting.tensorboard.plugin import LibraPlugin
        except ImportError as error:
            tb_logging.get_logger().warning("Libra tab: not loaded: %s", error)
            return None
        return LibraPlugin(context)
