"""Files in object stores and distributed file systems, through ``pyarrow.fs``.

Entry points: ``urls.url_of`` (is it a URL?), ``connecting.store_of`` (the store that paths name),
``listing.find_objects``.
"""
