"""HTTP clients of a running `tidegate`'s data port, for the commands; of the admin API it is `admin/client`."""
