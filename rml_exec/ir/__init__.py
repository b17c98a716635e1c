"""The graph: records, builder, file format, structural rules, text form. It knows names and types, not what an op means."""
