"""CLIP4IDC (Guo et al. 2022): CLIP looks at both images jointly, adapted by retrieval, then captions."""
