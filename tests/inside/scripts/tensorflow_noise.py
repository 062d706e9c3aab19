"""A regression of noise on the workers that TensorFlow finds by Slurm's variables."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(port_base=15000)
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((16,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.random.normal((64, 16)), tf.zeros((64, 1)), batch_size=8, epochs=1, verbose=0)
print(f"rank {resolver.task_id} of {strategy.num_replicas_in_sync}", flush=True)
