"""The paper's equations in plain NumPy, one function each: the oracle of the kernels.

Everything is float64 and loops over points; nothing is shared with the package.
"""

import itertools

import numpy as np


def decode(D, codes):
    """Σ_c d^c_{k_c}, Eq. 2."""
    return np.array([sum(D[c, k] for c, k in enumerate(row)) for row in codes]).reshape(len(codes), D.shape[2])


def distortion(X, D, codes):
    """Eq. 2."""
    return float(((np.asarray(X, float) - decode(D.astype(float), codes)) ** 2).sum())


def tables(D):
    """T of Eq. 8: (C, K, C, K), half the squared norms on the diagonal of c₁ = c₂ and nothing else there."""
    C, K, P = D.shape
    flat = D.reshape(C * K, P).astype(float)
    T = (flat @ flat.T).reshape(C, K, C, K)
    for c in range(C):
        T[c, :, c, :] = np.diag(np.diag(T[c, :, c, :]) / 2)
    return T


def greedy(X, D):
    """Sec. 2.3.2: dictionaries in order, each on the residual of those before."""
    codes = np.zeros((len(X), len(D)), int)
    for i, x in enumerate(np.asarray(X, float)):
        y = x.copy()
        for c in range(len(D)):
            codes[i, c] = ((y - D[c].astype(float)) ** 2).sum(axis=1).argmin()
            y -= D[c, codes[i, c]]
    return codes


def groups(C, order):
    """Groups of consecutive dictionaries; with order C there is one, with C = 2 and order 2 too."""
    if order == C:
        return [tuple(range(C))]
    return [tuple((c + m) % C for m in range(order)) for c in range(C)]


def assign(X, D, order, codes):
    """Alg. 2: each group in turn at its best given the other codes, until no code of the point changes."""
    C, K, _ = D.shape
    S = -np.einsum("ip,ckp->ick", np.asarray(X, float), D.astype(float))
    T = tables(D)
    codes = np.array(codes, int)
    for i in range(len(X)):
        changed = True
        while changed:
            changed = False
            for group in groups(C, order):
                best, chosen = cost(S[i], T, codes[i]), None
                for choice in itertools.product(range(K), repeat=order):
                    trial = codes[i].copy()
                    trial[list(group)] = choice
                    value = cost(S[i], T, trial)
                    if value < best - 1e-9 * (1 + abs(best)):
                        best, chosen = value, trial
                if chosen is not None:
                    codes[i], changed = chosen, True
    return codes


def mixed(x):
    """splitmix64 on 64 bits."""
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def drawn(state, end):
    """The next state, and a number below ``end`` made of it."""
    state = mixed(state)
    return state, ((state >> 32) * end) >> 32


def perturbed(code, K, seed):
    """Half of the codes, rounded down, drawn anew, by numbers made of the codes and the seed."""
    state = seed
    for k in code:
        state = mixed(state ^ int(k))

    code, missing = list(code), len(code) // 2
    for c in range(len(code)):
        if not missing:
            break
        state, place = drawn(state, len(code) - c)
        if place < missing:
            state, code[c] = drawn(state, K)
            missing -= 1
    return code


def rounds(X, D, order, codes, count, seed):
    """Assignment, then ``count`` times: perturb, assign by order 1 and then by ``order``, keep what is better."""
    best = assign(X, D, order, assign(X, D, 1, codes))
    for r in range(count):
        new = [perturbed(row, D.shape[1], mixed((seed + r) % 2**64)) for row in best]
        new = assign(X, D, order, assign(X, D, 1, new))
        for i, x in enumerate(X):
            if distortion(x[None], D, new[i : i + 1]) < distortion(x[None], D, best[i : i + 1]):
                best[i] = new[i]
    return best


def cost(S, T, code):
    """½‖x − Σ d‖² less ½‖x‖², from S (C, K) and T: Eq. 6 summed over the dictionaries."""
    total = 0.0
    for c, k in enumerate(code):
        total += S[c, k] + T[c, k, c, k]
        total += sum(T[c, k, b, code[b]] for b in range(c))
    return total


def statistics(X, codes, K):
    """Z (C, K, C, K) and W (C, K, P) of Eq. 15 to 17."""
    C = codes.shape[1]
    Z = np.zeros((C, K, C, K))
    W = np.zeros((C, K, X.shape[1]))
    for x, row in zip(np.asarray(X, float), codes, strict=True):
        for c, k in enumerate(row):
            W[c, k] += x
            for b, j in enumerate(row):
                Z[c, k, b, j] += 1
    return Z, W


def update(X, codes, K):
    """W = D Z by the pseudo-inverse, Sec. 2.2: (C, K, P)."""
    Z, W = statistics(X, codes, K)
    C, _, P = W.shape
    return (np.linalg.pinv(Z.reshape(C * K, C * K)) @ W.reshape(C * K, P)).reshape(C, K, P)


def procrustes(M):
    """Orthogonal R with the largest tr(Rᵀ M)."""
    U, _, Vt = np.linalg.svd(M)
    return U @ Vt


def mcmp(X, D, n_candidates):
    """MCMP: the whole tree, depth first; returns codes and the leaf's cost, ½‖x − Σ d‖² less ½‖x‖²."""
    C, _K, _ = D.shape
    D = D.astype(float)
    codes, costs = np.zeros((len(X), C), int), np.zeros(len(X))
    for i, x in enumerate(np.asarray(X, float)):
        best = np.inf
        stack = [((), x)]
        while stack:
            path, y = stack.pop()
            scores = (D[len(path)] ** 2).sum(axis=1) / 2 - D[len(path)] @ y
            order = np.argsort(scores, kind="stable")[: n_candidates if len(path) < C - 1 else 1]
            if len(path) == C - 1:
                left = y - D[C - 1, order[0]]
                cost = (left @ left - x @ x) / 2
                if cost < best:
                    best, codes[i] = cost, (*path, order[0])
            else:
                stack += [((*path, k), y - D[len(path), k]) for k in order[::-1]]
        costs[i] = best
    return codes, costs
