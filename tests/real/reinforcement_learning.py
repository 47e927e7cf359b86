"""Agents that are trained by reinforcement learning."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.real.fields import descend, mlp, weights
from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()


@SCRIPTS
def deep_q_network(by: By) -> Any:
    """A target network is copied from the one that is trained every third step."""
    use_float64()
    online, target = mlp(4, 8, 3), mlp(4, 8, 3)
    target.set_weights(online.get_weights())
    optimizer = keras.optimizers.Adam(0.01, clipnorm=1.0)
    loss_fn = keras.losses.Huber()

    @by.optimize()
    @tf.function
    def train_step(states: Any, actions: Any, rewards: Any, following: Any, done: Any) -> Any:
        best = tf.reduce_max(target(following), axis=1)
        wanted = rewards + 0.9 * best * (1.0 - done)
        with tf.GradientTape() as tape:
            q = tf.reduce_sum(online(states) * tf.one_hot(actions, 3, dtype=tf.float64), axis=1)
            loss = loss_fn(wanted, q)
        gradients = tape.gradient(loss, online.trainable_variables)
        optimizer.apply_gradients(zip(gradients, online.trainable_variables, strict=True))
        return loss

    def memories(random: np.random.Generator) -> Any:
        states = random.normal(size=(2, 8, 4))
        done = random.integers(0, 2, 8).astype(float)
        return states[0], random.integers(0, 3, 8), random.normal(size=8), states[1], done

    for number, batch in enumerate(by.batches(8, memories)):
        train_step(*batch)
        if number % 3 == 2:
            target.set_weights(online.get_weights())
    return online.trainable_variables + target.trainable_variables


@SCRIPTS
def soft_actor_critic(by: By) -> Any:
    """Two critics and an actor, three optimizers, targets that move a little in every step."""
    use_float64()
    actor, critics = mlp(4, 8, 2), [mlp(6, 8, 1), mlp(6, 8, 1)]
    targets = [keras.models.clone_model(critic) for critic in critics]
    for target_model, other in zip(targets, critics, strict=True):
        target_model.set_weights(other.get_weights())
    optimizers = [keras.optimizers.Adam(0.01) for _ in range(3)]
    for optimizer, target_model in zip(optimizers, (*critics, actor), strict=True):
        optimizer.build(target_model.trainable_variables)

    @by.optimize()
    @tf.function
    def train_step(states: Any, actions: Any, rewards: Any, following: Any) -> Any:
        then = tf.concat([following, tf.tanh(actor(following))], axis=1)
        wanted = rewards + 0.9 * tf.minimum(targets[0](then), targets[1](then))
        for critic, optimizer in zip(critics, optimizers[:2], strict=True):
            with tf.GradientTape() as tape:
                found = critic(tf.concat([states, actions], axis=1))
                loss = tf.reduce_mean(tf.square(found - wanted))
            gradients = tape.gradient(loss, critic.trainable_variables)
            optimizer.apply_gradients(zip(gradients, critic.trainable_variables, strict=True))
        with tf.GradientTape() as tape:
            now = tf.concat([states, tf.tanh(actor(states))], axis=1)
            loss = -tf.reduce_mean(tf.minimum(critics[0](now), critics[1](now)))
        gradients = tape.gradient(loss, actor.trainable_variables)
        optimizers[2].apply_gradients(zip(gradients, actor.trainable_variables, strict=True))
        for critic, target in zip(critics, targets, strict=True):
            for new, old in zip(critic.variables, target.variables, strict=True):
                old.assign(0.1 * new + 0.9 * old)
        return loss

    def memories(random: np.random.Generator) -> Any:
        states = random.normal(size=(2, 8, 4))
        return states[0], random.normal(size=(8, 2)), random.normal(size=(8, 1)), states[1]

    for batch in by.batches(5, memories):
        train_step(*batch)
    return [v for network in (actor, *critics, *targets) for v in network.variables]


@SCRIPTS
def actor_critic_over_an_episode(by: By) -> Any:
    """An episode is a loop of the graph that fills tensor arrays; returns are a second loop."""
    w, policy, value = variables = weights({"w": (3, 6), "policy": (6, 2), "value": (6, 1)})

    @by.optimize()
    @tf.function
    def train_step(start: Any, noise: Any) -> Any:
        with tf.GradientTape() as tape:
            state = start
            log_probs = tf.TensorArray(tf.float64, size=4)
            values = tf.TensorArray(tf.float64, size=4)
            rewards = tf.TensorArray(tf.float64, size=4)
            for t in tf.range(4):
                hidden = tf.tanh(state @ w)
                action = tf.math.log_softmax(hidden @ policy)
                log_probs = log_probs.write(t, action[:, 0])
                values = values.write(t, (hidden @ value)[:, 0])
                state = 0.9 * state + noise[:, t]
                rewards = rewards.write(t, -tf.reduce_sum(tf.square(state), axis=1))
            returns = tf.scan(lambda a, r: r + 0.9 * a, rewards.stack()[::-1])[::-1]
            advantage = tf.stop_gradient(returns) - values.stack()
            loss = -tf.reduce_mean(log_probs.stack() * tf.stop_gradient(advantage))
            loss += tf.reduce_mean(tf.square(advantage))
        descend(variables, tape.gradient(loss, variables), 0.01)
        return loss

    def starts(random: np.random.Generator) -> Any:
        return random.normal(size=(8, 3)), random.normal(size=(8, 4, 3))

    for batch in by.batches(5, starts):
        train_step(*batch)
    return variables
