"""What was measured, to read: `tables` as text, `page` an audit as HTML, `label_card` a folder of labels as a card."""

from ..writing import write_metrics
from .tables import Evaluated, aligned, as_evaluation, interval, table, table_rows

__all__ = ["Evaluated", "aligned", "as_evaluation", "interval", "table", "table_rows", "write_metrics"]
