"""TensorFlow with Keras: the ``mixed_float16`` policy."""
