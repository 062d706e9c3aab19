"""A line fitted to noise, on the workers that TensorFlow finds by Slurm's variables."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(port_base=15000)
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
with strategy.scope():
    slope = tf.Variable(tf.zeros((16, 1)))


def step() -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.random.normal((8, 16)) @ slope - 1) ** 2)
    total = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, slope))
    slope.assign_sub(0.01 * total)
    return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))


replicas = strategy.run(tf.function(step))
print(f"rank {resolver.task_id} of {int(replicas)}", flush=True)
