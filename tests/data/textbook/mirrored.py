"""TensorFlow's MirroredStrategy: one process, all GPUs of the node."""

import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
print("replicas:", strategy.num_replicas_in_sync)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((10,)), tf.keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer="sgd")
model.fit(tf.random.normal((64, 10)), tf.random.normal((64, 1)), epochs=2, batch_size=16, verbose=0)
print("trained by TensorFlow")
