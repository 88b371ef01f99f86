"""Files that others have made or may change, by descriptors: opened, compared, and never followed through a link."""
