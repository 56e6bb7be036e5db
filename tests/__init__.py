"""The tests of clusterddp."""
