"""Other machines' CPUs, on Ray: part of a loader's work goes to a cluster when this machine cannot feed the consumer.
"""
