"""The paper's tables and figures, re-made: Table 1, Table 2, Figure 1 and Figure 2 (Appendix)."""

from .figure1 import figure1
from .figure2 import figure2
from .methods import Settings
from .table1 import table1
from .table2 import table2

__all__ = ["Settings", "figure1", "figure2", "table1", "table2"]
