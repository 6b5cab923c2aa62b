"""Record formats of a data set: TFRecord, webdataset tar and ArrayRecord behind one interface."""
