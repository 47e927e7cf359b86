"""Networks of other fields: graphs, physics, ratings, learning to learn."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()


def weights(shapes: dict[str, tuple[int, ...]], seed: int = 1) -> list[tf.Variable]:
    random = np.random.default_rng(seed)
    return [tf.Variable(random.normal(size=s) / 2, name=n) for n, s in shapes.items()]


def descend(variables: Any, gradients: Any, rate: float = 0.1) -> None:
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(rate * tf.convert_to_tensor(gradient))


def mlp(inputs: int, *widths: int) -> Any:
    hidden = [layers.Dense(width, activation="tanh") for width in widths[:-1]]
    return keras.Sequential([keras.Input((inputs,)), *hidden, layers.Dense(widths[-1])])


def graphs(random: np.random.Generator) -> Any:
    """Eight graphs of five nodes and nine edges each."""
    edges = random.integers(0, 5, (8, 9, 2))
    return random.normal(size=(8, 5, 3)), edges, random.normal(size=(8, 1))


@SCRIPTS
def message_passing_by_segments(by: By) -> Any:
    """Messages along edges, summed by `unsorted_segment_sum`, for three rounds in `tf.range`."""
    shapes = {"embed": (3, 6), "message": (12, 6), "update": (12, 6), "read": (6, 1)}
    embed, message, update, read = variables = weights(shapes)

    @by.optimize()
    @tf.function
    def train_step(nodes: Any, edges: Any, labels: Any) -> Any:
        count = tf.shape(nodes)[0]
        offsets = 5 * tf.range(count, dtype=edges.dtype)[:, None, None]
        flat = tf.reshape(edges + offsets, [-1, 2])
        with tf.GradientTape() as tape:
            h = tf.tanh(tf.reshape(nodes, [-1, 3]) @ embed)
            for _ in tf.range(3):
                ends = tf.concat([tf.gather(h, flat[:, 0]), tf.gather(h, flat[:, 1])], axis=1)
                sent = tf.nn.relu(ends @ message)
                got = tf.math.unsorted_segment_sum(sent, flat[:, 1], 5 * count)
                h = tf.tanh(tf.concat([h, got], axis=1) @ update)
            graph = tf.math.unsorted_segment_mean(h, tf.repeat(tf.range(count), 5), count)
            loss = tf.reduce_mean(tf.square(graph @ read - labels))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for batch in by.batches(5, graphs):
        train_step(*batch)
    return variables


@SCRIPTS
def graph_attention(by: By) -> Any:
    """Attention over edges by segment maxima and sums; Keras layers, unrolled."""
    use_float64()
    project, score, final = layers.Dense(6), layers.Dense(1), layers.Dense(1)
    for layer, width in ((project, 3), (score, 12), (final, 6)):
        layer.build((None, width))
    variables = [v for model in (project, score, final) for v in model.trainable_variables]
    optimizer = keras.optimizers.SGD(0.1)

    @by.optimize()
    @tf.function
    def train_step(nodes: Any, edges: Any, labels: Any) -> Any:
        count = tf.shape(nodes)[0]
        flat = tf.reshape(edges + 5 * tf.range(count, dtype=edges.dtype)[:, None, None], [-1, 2])
        with tf.GradientTape() as tape:
            h = project(tf.reshape(nodes, [-1, 3]))
            ends = tf.concat([tf.gather(h, flat[:, 0]), tf.gather(h, flat[:, 1])], axis=1)
            raw = tf.nn.leaky_relu(score(ends))[:, 0]
            top = tf.gather(tf.math.unsorted_segment_max(raw, flat[:, 1], 5 * count), flat[:, 1])
            exps = tf.exp(raw - top)
            sums = tf.gather(tf.math.unsorted_segment_sum(exps, flat[:, 1], 5 * count), flat[:, 1])
            weighted = (exps / sums)[:, None] * tf.gather(h, flat[:, 0])
            h = tf.nn.elu(tf.math.unsorted_segment_sum(weighted, flat[:, 1], 5 * count))
            loss = tf.reduce_mean(
                tf.square(tf.reduce_mean(tf.reshape(final(h), [-1, 5, 1]), axis=1) - labels)
            )
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for batch in by.batches(5, graphs):
        train_step(*batch)
    # Softmax does not see the score's bias.
    return [v for v in variables if v is not score.bias]


@SCRIPTS
def physics_informed_network(by: By) -> Any:
    """The residual of a differential equation: second derivatives of the inputs, in float64."""
    use_float64()
    model = mlp(2, 8, 8, 1)
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    @by.optimize()
    @tf.function
    def train_step(t: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as second:
                second.watch(x)
                with tf.GradientTape(persistent=True) as first:
                    first.watch([t, x])
                    u = model(tf.concat([t, x], axis=1))
                u_t, u_x = first.gradient(u, t), first.gradient(u, x)
            u_xx = second.gradient(u_x, x)
            loss = tf.reduce_mean(tf.square(u_t + u * u_x - 0.01 * u_xx))
            start = model(tf.concat([tf.zeros_like(x), x], axis=1))
            loss += tf.reduce_mean(tf.square(start + tf.sin(3.0 * x)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def points(random: np.random.Generator) -> Any:
        return random.random(size=(8, 1)), random.normal(size=(8, 1))

    for t, x in by.batches(5, points):
        train_step(t, x)
    return model.trainable_variables


@SCRIPTS
def adversarial_training(by: By) -> Any:
    """Inputs are moved along the sign of their gradient before the step."""
    use_float64()
    model = mlp(4, 8, 3)
    optimizer = keras.optimizers.SGD(0.1)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loss_fn(y, model(x))
        x += 0.1 * tf.sign(tape.gradient(loss, x))
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def rows(random: np.random.Generator) -> Any:
        return random.normal(size=(8, 4)), random.integers(0, 3, 8)

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return model.trainable_variables


@SCRIPTS
def matrix_factorization(by: By) -> Any:
    """Two embeddings and their biases, dot products; slices are gathered, a bias is reduced."""
    random = np.random.default_rng(3)
    users = tf.Variable(random.normal(size=(20, 4)), name="users")
    items = tf.Variable(random.normal(size=(15, 4)), name="items")
    user_bias = tf.Variable(np.zeros((20, 1)), name="user_bias")
    mean = tf.Variable(np.zeros(()), name="mean")
    scale = tf.Variable(np.ones((4,)), name="scale")
    variables = [users, items, user_bias, mean, scale]

    @by.optimize()
    @tf.function
    def train_step(user: Any, item: Any, rating: Any) -> Any:
        with tf.GradientTape() as tape:
            product = tf.gather(users, user) * tf.gather(items, item) * scale
            found = tf.reduce_sum(product, axis=1) + tf.gather(user_bias, user)[:, 0] + mean
            loss = tf.reduce_mean(tf.square(found - rating))
        descend(variables, tape.gradient(loss, variables))
        return loss

    def ratings(random: np.random.Generator) -> Any:
        return random.integers(0, 20, 8), random.integers(0, 15, 8), random.normal(size=8)

    for batch in by.batches(5, ratings):
        train_step(*batch)
    return variables


@SCRIPTS
def wide_and_deep(by: By) -> Any:
    """Features of several kinds in a dictionary, by `fit`; sample weights; two losses."""
    use_float64()
    numbers, kinds = keras.Input((3,), name="numbers"), keras.Input((2,), name="kinds")
    deep = layers.Dense(8, activation="relu")(layers.concatenate([numbers, kinds]))
    wide = layers.Dense(1, name="rating")(layers.concatenate([deep, kinds]))
    click = layers.Dense(1, activation="sigmoid", name="click")(deep)
    model = keras.Model({"numbers": numbers, "kinds": kinds}, {"rating": wide, "click": click})
    model.compile(
        keras.optimizers.Adagrad(0.1),
        loss={"rating": "mse", "click": "binary_crossentropy"},
        loss_weights={"rating": 0.3, "click": 1.0},
    )
    random = np.random.default_rng(1)
    x = {"numbers": random.normal(size=(32, 3)), "kinds": random.normal(size=(32, 2))}
    y = {
        "rating": random.normal(size=(32, 1)),
        "click": random.integers(0, 2, (32, 1)).astype(float),
    }
    by.fit(model, (x, y), batch=4)
    return model.trainable_variables


@SCRIPTS
def meta_learning(by: By) -> Any:
    """Reptile: a copy is trained on a task, and the weights move towards it."""
    shapes = {"w0": (1, 6), "b0": (6,), "w1": (6, 1)}
    slow = weights(shapes)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            found = tf.tanh(x @ slow[0] + slow[1]) @ slow[2]
            loss = tf.reduce_mean(tf.square(found - y))
        gradients = tape.gradient(loss, slow)
        before = [tf.identity(v) for v in slow]
        descend(slow, gradients, 0.1)
        with tf.GradientTape() as tape:
            found = tf.tanh(x @ slow[0] + slow[1]) @ slow[2]
            loss = tf.reduce_mean(tf.square(found - y))
        descend(slow, tape.gradient(loss, slow), 0.1)
        for v, old in zip(slow, before, strict=True):
            v.assign(old + 0.5 * (v - old))
        return loss

    def tasks(random: np.random.Generator) -> Any:
        x = random.normal(size=(8, 1))
        return x, np.sin(x)

    for x, y in by.batches(5, tasks):
        train_step(x, y)
    return slow


@SCRIPTS
def anomaly_scores_with_center(by: By) -> Any:
    """Deep SVDD: distances from a constant center, no biases; early stopping by Python."""
    use_float64()
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, use_bias=False, activation="leaky_relu"),
            layers.Dense(3, use_bias=False),
        ]
    )
    center = tf.constant([0.1, 0.2, 0.3], tf.float64)
    optimizer = keras.optimizers.Nadam(0.01)
    optimizer.build(model.trainable_weights)

    @by.optimize()
    @tf.function
    def train_step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum(tf.square(model(x) - center), axis=1))
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        return loss

    best = np.inf
    for x in by.batches(8, lambda random: random.normal(size=(8, 6))):
        loss = float(train_step(x))
        if loss > 100 * best:
            break
        best = min(best, loss)
    return model.trainable_weights


@SCRIPTS
def gaussian_process_features(by: By) -> Any:
    """Marginal likelihood of a kernel matrix by Cholesky factors, per group of points."""
    length, noise, projection = variables = weights(
        {"length": (1,), "noise": (1,), "projection": (3, 2)}
    )

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            z = x @ projection
            square = tf.reduce_sum((z[:, :, None] - z[:, None]) ** 2, axis=-1)
            kernel = tf.exp(-square * tf.nn.softplus(length))
            kernel += (0.1 + tf.nn.softplus(noise)) * tf.eye(5, dtype=tf.float64)
            factor = tf.linalg.cholesky(kernel)
            alpha = tf.linalg.cholesky_solve(factor, y)
            fit = 0.5 * tf.reduce_sum(y * alpha, axis=[1, 2])
            fit += tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=1)
            loss = tf.reduce_mean(fit)
        descend(variables, tape.gradient(loss, variables), 0.05)
        return loss

    def groups(random: np.random.Generator) -> Any:
        return random.normal(size=(4, 5, 3)), random.normal(size=(4, 5, 1))

    for x, y in by.batches(5, groups):
        train_step(x, y)
    return variables
