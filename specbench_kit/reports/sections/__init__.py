"""Sections, cautions, columns and sentences that several kinds of reports share."""
