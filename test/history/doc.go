// Package history has the test of random histories: people publish, push, delete and change roles
// while git servers fail and processes are killed, frozen and replaced. In the end the repositories
// must be what the events say, by a model that shares no code with the program. `make chaos SEED=n`
// prints the story of one seed.
package history
