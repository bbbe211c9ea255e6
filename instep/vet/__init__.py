"""JUDGED: settings of cluster, topic, publisher, pipeline and database against the declared guarantee."""
