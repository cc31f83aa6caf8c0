# SPDX-License-Identifier: MIT
"""The package with the model that ships, at 64 pixels: `pytest python`, or `python3 -m unittest discover python/tests`."""

import os
import signal
import threading
import time
import unittest

import numpy as np

import nalagen

QUICK = dict(sampler="euler", steps=2, cfg_scale=1)


class WithModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            cls.model = nalagen.load(size=64)
        except (nalagen.LibraryNotFoundError, nalagen.InputError) as error:
            raise unittest.SkipTest(str(error)) from error

    @classmethod
    def tearDownClass(cls):
        cls.model.close()


class Sampling(WithModel):
    def test_images_are_functions_of_seed_and_index(self):
        images = self.model.sample(["church", 4], 4, seed=1, **QUICK)
        self.assertEqual((images.shape, images.dtype), ((4, 64, 64, 3), np.uint8))
        self.assertEqual(list(images.labels), [self.model.class_index("church"), 4] * 2)
        self.assertTrue(np.array_equal(images[2:], self.model.sample(["church", 4], 2, seed=1, first_index=2, **QUICK)))
        self.assertFalse(np.array_equal(images, self.model.sample(["church", 4], 4, seed=2, **QUICK)))

    def test_a_stream_has_the_same_images_and_may_be_left(self):
        images = self.model.sample([0, 1, 2], batch=1, **QUICK)
        for picture, image in zip(self.model.stream([0, 1, 2], batch=1, **QUICK), images):
            self.assertTrue(np.array_equal(picture.rgb, image))
        for _ in self.model.stream([0, 1, 2], batch=1, **QUICK):
            break  # the rest is not made
        for _ in range(5):  # cancelled when all is done: not the next call's matter
            for _ in self.model.stream([0], **QUICK):
                break
            self.assertEqual(len(self.model.sample_latents(0, **QUICK)), 1)

    def test_latents_are_decoded_and_encoded(self):
        images = self.model.sample("church", **QUICK)
        self.assertEqual(images.latents.shape[1:], self.model.latent_shape)
        self.assertTrue(np.array_equal(self.model.decode(images.latents), images))
        self.assertEqual(self.model.encode(images).shape, images.latents.shape)

    def test_the_model_says_what_it_is(self):
        self.assertRegex(repr(self.model), r"^<nalagen\.Model .*: SiT with nala attention, 20 classes, 4 x 8 x 8>$")


class Failures(WithModel):
    def fails(self, kind, text, *arguments, **options):
        with self.assertRaises(kind) as caught:
            self.model.sample_latents(*arguments, **options)
        self.assertIn(text, str(caught.exception))

    def load_fails(self, kind, status, **options):
        with self.assertRaises(kind) as caught:
            nalagen.load(**options)
        self.assertEqual(caught.exception.status, status)

    def test_wrong_arguments(self):
        self.fails(nalagen.UsageError, 'there is no "x"', 0, sampler="x")
        self.fails(ValueError, "no such", "no such")
        self.fails(nalagen.UsageError, "label 99", 99)
        self.fails(nalagen.UsageError, "noise: expected [2, ", 0, 2, noise=np.zeros((2, 3, 4, 4)))
        self.fails(nalagen.UsageError, "out of range", 0, batch=2**40)
        self.fails(nalagen.UsageError, "cfg_scale", 0, cfg_scale=-1)
        self.fails(nalagen.UsageError, "at least 1", 0, 0)
        self.fails(nalagen.UsageError, "out of range", 0, 10**30)
        self.fails(MemoryError, "allocate", 0, 2**50)
        self.fails(nalagen.UsageError, "guide_interval is 0.8 to 0.2", 0, guide_interval=(0.8, 0.2))
        self.fails(nalagen.UsageError, "none given", [], 1)
        self.fails(TypeError, "stepps", 0, stepps=3)
        self.assertEqual(len(self.model.sample_latents(0, **QUICK)), 1)  # usable afterwards

    def test_models_that_cannot_be_loaded(self):
        self.load_fails(nalagen.InputError, 3, path="nowhere.pt")
        self.load_fails(nalagen.UsageError, 2, device="no such device")
        self.load_fails(nalagen.OutOfMemoryError, 4, max_memory=1000)
        self.load_fails(MemoryError, 4, max_memory=1000)

    def test_a_closed_model(self):
        with nalagen.load(size=64) as model:
            pass
        with self.assertRaisesRegex(ValueError, "closed"):
            model.sample_latents(0)


class Stopping(WithModel):
    def test_by_what_progress_returns(self):
        with self.assertRaises(nalagen.Cancelled) as caught:
            self.model.sample_latents(0, steps=100000, sampler="euler", progress=lambda p: p.step < 5)
        self.assertEqual(caught.exception.status, 130)

    def test_by_an_exception_of_progress(self):
        def broken(progress):
            raise KeyError("mine")
        with self.assertRaises(KeyError):
            self.model.sample_latents(0, steps=100000, sampler="euler", progress=broken)

    def test_by_ctrl_c(self):
        for wait in 0, 0.3:  # about before the first step, and amidst
            began = time.monotonic()
            with self.assertRaises(KeyboardInterrupt):
                threading.Timer(wait, os.kill, (os.getpid(), signal.SIGINT)).start()
                self.model.sample_latents(0, 16, steps=100000, sampler="euler")
            self.assertLess(time.monotonic() - began, 30)

    def test_other_threads_run_meanwhile(self):
        done, count = threading.Event(), 0

        def work():
            self.model.sample_latents(0, 8, steps=50, sampler="euler")
            done.set()
        threading.Thread(target=work).start()
        while not done.is_set():
            count += 1
            time.sleep(0.001)
        self.assertGreater(count, 3)


if __name__ == "__main__":
    unittest.main()
