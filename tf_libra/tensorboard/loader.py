"""Brings the plugin into TensorBoard, or leaves it out with a word where something is missing.

TensorFlow is not needed to look at a run.
"""

from typing import Any

from tensorboard.plugins import base_plugin
from tensorboard.util import tb_logging


class LibraLoader(base_plugin.TBLoader):
    """What TensorBoard finds under the entry point `tensorboard_plugins`."""

    def load(self, context: base_plugin.TBContext) -> Any:
        """Returns the plugin; None where a package that it needs cannot be imported."""
        try:
            from tf_libra.tensorboard.plugin import LibraPlugin
        except ImportError as error:
            tb_logging.get_logger().warning("The Libra tab is left out: %s", error)
            return None
        return LibraPlugin(context)
