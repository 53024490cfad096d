"""ORTModule's name of the module for DeepSpeed's ZeRO stage 3."""

raise ImportError("lowtide has no ZeROOffloadSubscriber: it does not work with DeepSpeed's ZeRO stage 3 yet.")
