"""Bounding boxes, in pixels, of objects and of their shadows on the ground: what the ray tracer may skip.

Scalars and objects are as in :mod:`~lightning_idc.data.synthetic.rays`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from math import sqrt

from lightning_idc.data.synthetic.rays import FAR, HALF, NEAR, ONE, TWO, ZERO, _f, shared


@shared
def _box(camera, focal, x, y, z, bound, height, width, box):
    """Bounding box of a sphere's pixels, including all samples: first and last column, first and last row."""
    x, y, z = x - camera[0], y - camera[1], z - camera[2]
    u = x * camera[3] + y * camera[4] + z * camera[5]
    v = x * camera[6] + y * camera[7] + z * camera[8]
    depth = (x * camera[9] + y * camera[10] + z * camera[11]) / focal
    box[0], box[1], box[2], box[3] = 0, width - 1, 0, height - 1
    if depth + bound <= ZERO:
        box[1] = -1  # behind the camera
    elif depth - bound > _f(0.1):
        u, v = u / depth, v / depth
        scale = HALF * _f(width) * focal
        reach = bound / (depth - bound) * scale
        middle, half = HALF * _f(width) + u * scale, reach * (ONE + abs(u)) + ONE
        box[0], box[1] = max(int(middle - half), 0), min(int(middle + half) + 1, width - 1)
        middle, half = HALF * _f(height) - v * scale, reach * (ONE + abs(v)) + ONE
        box[2], box[3] = max(int(middle - half), 0), min(int(middle + half) + 1, height - 1)


@shared
def _patch(camera, cx, cy, x, y, near, far, half, height, width, box):
    """Bounding box of a rectangle on the ground: `near` to `far` along a direction, `half` to both sides."""
    left, right, top, bottom = FAR, -FAR, FAR, -FAR
    for corner in range(4):
        along, aside = near if corner < 2 else far, half if corner % 2 else -half
        px, py, pz = cx + along * x - aside * y - camera[0], cy + along * y + aside * x - camera[1], -camera[2]
        depth = px * camera[9] + py * camera[10] + pz * camera[11]  # times the focal length
        if depth < _f(0.1):
            return
        scale = HALF * _f(width) / depth * (camera[9] * camera[9] + camera[10] * camera[10] + camera[11] * camera[11])
        column = HALF * _f(width) + scale * (px * camera[3] + py * camera[4] + pz * camera[5])
        row = HALF * _f(height) - scale * (px * camera[6] + py * camera[7] + pz * camera[8])
        left, right = min(left, column), max(right, column)
        top, bottom = min(top, row), max(bottom, row)
    limit = _f(1 << 20)  # avoids integer overflow
    box[0], box[1] = max(int(max(left, -limit)) - 2, 0), min(int(min(right, limit)) + 2, width - 1)
    box[2], box[3] = max(int(max(top, -limit)) - 2, 0), min(int(min(bottom, limit)) + 2, height - 1)


@shared
def boxes_of_all(things, count, lights, light_count, camera, height, width, boxes):
    """Bounding boxes of objects and of their shadows on the ground."""
    focal = sqrt(camera[9] * camera[9] + camera[10] * camera[10] + camera[11] * camera[11])
    for k in range(count):
        cx, cy, cz, bound = things[k, 1], things[k, 2], things[k, 3], things[k, 4]
        _box(camera, focal, cx, cy, cz, bound, height, width, boxes[0, k])
        for n in range(light_count):
            box = boxes[1 + n, k]
            box[0], box[1], box[2], box[3] = 0, width - 1, 0, height - 1
            x, y, z = cx - lights[n, 0], cy - lights[n, 1], lights[n, 2] - cz
            flat = sqrt(x * x + y * y)
            distance = sqrt(flat * flat + z * z)
            # cone of the shadow and its penumbra: first with an upper bound of the penumbra, then with a tighter one
            blur = HALF * lights[n, 3] + NEAR
            for step in range(2):
                sine = (bound + blur) / distance
                if sine >= ONE:
                    break
                cosine = sqrt(ONE - sine * sine)
                # directions to the near and far end of the shadow by the angle addition formulas
                fall, run = (z * cosine - flat * sine) / distance, (flat * cosine + z * sine) / distance
                if fall < _f(0.05):
                    break
                slant = lights[n, 2] / fall
                if step == 0:
                    blur = min(lights[n, 3] * (ONE - distance / slant) + TWO * NEAR, blur)
                    if blur == HALF * lights[n, 3] + NEAR:
                        break
                    continue
                far = slant * run
                near = lights[n, 2] * (flat * cosine - z * sine) / (z * cosine + flat * sine)
                x, y = (x / flat, y / flat) if flat > NEAR else (ONE, ZERO)
                _patch(camera, lights[n, 0], lights[n, 1], x, y, near, far, slant * sine / cosine, height, width, box)


@shared
def list_row(boxes, count, light_count, row, active):
    """Count and list the objects, and the shadows of each light, that can be visible in a row of pixels."""
    for g in range(1 + light_count):
        num_active = 0
        for k in range(count):
            if boxes[g, k, 2] <= row <= boxes[g, k, 3]:
                num_active += 1
                active[g, num_active] = k
        active[g, 0] = num_active
