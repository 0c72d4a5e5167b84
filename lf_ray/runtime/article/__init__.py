"""The article's interface for any module that returns a loss: GraphCapture and OverlapScheduler."""
