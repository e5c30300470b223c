"""From images to imagined futures: encoder, predictor, world model, rollout, checkpoint."""
