// Package readme compiles and runs the code of README.md.
package readme
