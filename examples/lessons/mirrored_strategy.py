"""TensorFlow's MirroredStrategy: one process, a copy of the model on each GPU of the node, and gradients added up each step."""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
inputs = rng.random((2000, 10), dtype=np.float32)
targets = inputs.sum(axis=1, keepdims=True)

strategy = tf.distribute.MirroredStrategy()
replicas = strategy.num_replicas_in_sync
print(f"{replicas} replicas on {strategy.extended.worker_devices}", flush=True)

tf.keras.utils.set_random_seed(0)
with strategy.scope():  # variables that are made here have a copy on each GPU
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(1)])
    model.compile(optimizer=tf.keras.optimizers.AdamW(0.003), loss="mse")

# The batch is divided among the copies: more GPUs need a larger one.
data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(25 * replicas)
for epoch in range(5):
    found = model.fit(data, verbose=0)
    print(f"epoch {epoch}: loss {found.history['loss'][0]:.4f}", flush=True)
