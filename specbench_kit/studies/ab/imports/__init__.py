"""Result files of other load generators, one file per tool."""
