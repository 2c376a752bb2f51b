"""The report: one page that opens from a file, with every number of a plan and a picture of every idle moment."""

from autopipe.reporting.page.page import report_page

__all__ = ["report_page"]
