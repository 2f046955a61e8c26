// Command program is built into the images of tests: as small as a program can be.
package main

func main() {}
