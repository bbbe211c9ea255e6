"""Check settings of cluster, topic, publishers, pipeline and database against the guarantee."""
