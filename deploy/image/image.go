// Package image tests what the images are made of. rootfs makes their root file system, build makes
// an image of it without Docker, Dockerfile makes one with it.
package image
