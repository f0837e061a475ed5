package odd
